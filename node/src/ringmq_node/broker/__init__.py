"""What every door calls: finding the master, declaring, deleting, the watched catalogue."""
