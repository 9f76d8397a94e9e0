"""An index of identities on disk: sorted runs of pages, looked into and merged together."""
