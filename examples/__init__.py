"""Programs that users of Icestream read and run."""
