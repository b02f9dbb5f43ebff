"""The job's end of the control socket: who asks from outside is answered here."""
