"""What people start: the command line, the web page and reports."""
