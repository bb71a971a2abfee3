"""What `plan` shows: tables, timelines and traces, as rows and as files."""
