"""Which operators share a component and which components share a task, as pure decisions."""
