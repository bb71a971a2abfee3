"""What `plan` shows: tables, timelines, traces and a page, as rows and as files."""
