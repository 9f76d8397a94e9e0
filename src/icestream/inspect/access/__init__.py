"""Read access to a checkpoint: its versions, its shards in a scratch folder, and edited rows."""
