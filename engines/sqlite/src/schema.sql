-- Format 1. Times are nanoseconds of CLOCK_BOOTTIME. A run is one of the machine, from its start to its end.

CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    token INTEGER NOT NULL,   -- the last token drawn
    boot TEXT NOT NULL        -- the kernel's boot id in the run that opened the file last, as far as anybody knew it
) STRICT;

CREATE TABLE holders (
    name TEXT NOT NULL,
    claim BLOB NOT NULL,
    mode TEXT NOT NULL,       -- x, s, or p:N
    first INTEGER NOT NULL,   -- the grant's tokens: the first, and how many
    count INTEGER NOT NULL,
    token INTEGER NOT NULL,   -- the one in use by now
    expiry INTEGER NOT NULL,
    lock_delay INTEGER NOT NULL,
    since INTEGER NOT NULL,
    state TEXT NOT NULL,      -- held, asked, or abandoned
    owner TEXT NOT NULL,
    label TEXT,
    bell BLOB,                -- where the holder's process listens
    run TEXT,                 -- the kernel's boot id, if the holder's process knew it
    written INTEGER,          -- when it was granted or prolonged
    PRIMARY KEY (name, claim)
) STRICT, WITHOUT ROWID;

CREATE TABLE waiters (
    name TEXT NOT NULL,
    ticket INTEGER NOT NULL,  -- the order of the line
    claim BLOB NOT NULL,
    mode TEXT NOT NULL,
    expiry INTEGER NOT NULL,
    owner TEXT NOT NULL,
    bell BLOB,
    label TEXT,
    PRIMARY KEY (name, ticket)
) STRICT, WITHOUT ROWID;
