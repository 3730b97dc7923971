-- Format 1. What fencelock keeps in PostgreSQL; made by itself where it may, else by whoever runs this.

-- One row: the format, and the run of the server (its timeline and its start) for which tokens were last lifted to the time.
CREATE TABLE IF NOT EXISTS fencelock_store (
    id integer PRIMARY KEY CHECK (id = 1),
    format integer NOT NULL,
    run text NOT NULL
);
INSERT INTO fencelock_store (id, format, run) VALUES (1, 1, '') ON CONFLICT DO NOTHING;

-- Fencing tokens, sixteen at a time.
CREATE SEQUENCE IF NOT EXISTS fencelock_tokens INCREMENT BY 16 MINVALUE 16;

-- strategy=for-update: the rows to lock, while they are used.
CREATE TABLE IF NOT EXISTS fencelock_names (
    name text COLLATE "C" PRIMARY KEY
);

-- strategy=for-update and strategy=advisory: who holds, by which connection. A row whose connection is gone means nothing.
CREATE TABLE IF NOT EXISTS fencelock_bound (
    claim bytea PRIMARY KEY,
    strategy text NOT NULL,
    name text COLLATE "C" NOT NULL,
    mode text NOT NULL,
    first bigint NOT NULL,
    count integer NOT NULL,
    token bigint NOT NULL,
    owner text NOT NULL,
    label text,
    ttl_ms bigint NOT NULL,
    since timestamptz NOT NULL,
    asked boolean NOT NULL DEFAULT false,
    pid integer NOT NULL,
    started bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS fencelock_bound_name ON fencelock_bound (name);
