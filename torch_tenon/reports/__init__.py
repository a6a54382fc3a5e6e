"""What the device did, for people: counts of ops and windows, times, and the pages that show them."""
