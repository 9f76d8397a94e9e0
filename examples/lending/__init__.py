"""A peer-to-peer lender: interest and approval by area and for all, over five windows."""
