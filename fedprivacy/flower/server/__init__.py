"""The server's side of a round: who is asked, with which grant, and what becomes of the answers."""
