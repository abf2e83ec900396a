"""What the verbs do, without their command lines."""
