"""Lock objects and the ways to acquire them: one, any, all, slots, readers and writer."""
