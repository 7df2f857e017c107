"""Programs to read, run and change. Each makes its own data; start them from the root of the checkout."""
