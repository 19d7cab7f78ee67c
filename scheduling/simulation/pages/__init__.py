"""What a simulated datacenter adds to the pages: forms that inject faults, and the progress of the demo's history."""
