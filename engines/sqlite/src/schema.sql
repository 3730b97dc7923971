-- Format 1. Times are nanoseconds of CLOCK_BOOTTIME.

CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    token INTEGER NOT NULL,   -- no token above it was drawn
    boot TEXT NOT NULL,       -- the kernel's boot id when the file was last opened by a process that knew it
    horizon INTEGER,          -- as long as it is `token`, tokens up to it are drawn by the clock (tokens.rs)
    origin INTEGER,           -- the token of the boot clock's zero, in microseconds, in the boot whose id this is:
    origin_boot TEXT
) STRICT;

CREATE TABLE holders (
    name TEXT NOT NULL,
    claim BLOB NOT NULL,
    mode TEXT NOT NULL,       -- x, s, or p:N
    first INTEGER NOT NULL,   -- the grant's tokens: the first, and how many
    count INTEGER NOT NULL,
    token INTEGER NOT NULL,   -- the present one of them
    expiry INTEGER NOT NULL,
    lock_delay INTEGER NOT NULL,
    since INTEGER NOT NULL,
    state TEXT NOT NULL,      -- held, asked, or abandoned
    owner TEXT NOT NULL,
    label TEXT,
    bell BLOB,                -- the address at which the holder's process listens for wake-ups
    run TEXT,                 -- the kernel's boot id, if the holder's process knew it
    written INTEGER,          -- when it was granted or prolonged
    PRIMARY KEY (name, claim)
) STRICT, WITHOUT ROWID;

CREATE TABLE waiters (
    name TEXT NOT NULL,
    ticket INTEGER NOT NULL,  -- the order of the queue
    claim BLOB NOT NULL,
    mode TEXT NOT NULL,
    expiry INTEGER NOT NULL,
    owner TEXT NOT NULL,
    bell BLOB,
    label TEXT,
    PRIMARY KEY (name, ticket)
) STRICT, WITHOUT ROWID;
