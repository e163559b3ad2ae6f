"""The same computation under several modes, with everything put back."""
