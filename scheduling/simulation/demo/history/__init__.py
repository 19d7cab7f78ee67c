"""The history of the demo: weeks that the drill simulates, written as rows when the demo starts for the first time."""
