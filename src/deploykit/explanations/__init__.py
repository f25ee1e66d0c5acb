"""What each error code means, as data."""
