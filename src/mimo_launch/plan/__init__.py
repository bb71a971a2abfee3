"""What all ranks of a job must agree on before it starts."""
