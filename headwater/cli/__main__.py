"""`python -m headwater.cli` is `hw`, for where the command is not on the path."""

from headwater.cli import main

main()
