"""The intermediate representation: programs of single assignments, and the recurrence made of them."""
