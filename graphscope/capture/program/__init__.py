"""What a caller gives, and what a program does: its backward calls, its failures, its roots."""
