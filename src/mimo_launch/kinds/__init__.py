"""What each kind of model is, without torch: its tokens and what its layers save."""
