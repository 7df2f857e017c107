"""The console: a local web page over a store, embedded or behind brokers. `hw console` serves it, and so do brokers.

It is a process of its own beside what it looks at. `server` puts it together, `security` says who may ask what,
`watch` keeps looking at the store, and each kind of page has a file with the answers that it is made of. The page
itself is in `static`: plain modules for the browser, with nothing to build and nothing to fetch from elsewhere.
"""
