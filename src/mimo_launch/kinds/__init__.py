"""What each kind of model is, without torch: inputs, weights, work and saved activations."""
