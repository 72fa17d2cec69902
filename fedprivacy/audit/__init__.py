"""The auditor: evidence that the code which runs deserves the epsilon that it claims."""
