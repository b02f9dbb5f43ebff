"""Commands over many hosts: the names, the fan-out, and what runs at the far end."""
