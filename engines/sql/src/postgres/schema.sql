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

-- strategy=for-update and strategy=advisory: who holds, and (with a count of 0) who waits, by which connection. A row whose
-- connection is gone means nothing.
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

-- strategy=lease: a gate per name that is in use, its holders and its line. Times are microseconds since 1970, UTC.
CREATE TABLE IF NOT EXISTS fencelock_locks (
    name text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS fencelock_holders (
    name text COLLATE "C" NOT NULL,
    first bigint NOT NULL,
    count integer NOT NULL,
    token bigint NOT NULL,
    claim bytea NOT NULL,
    mode text NOT NULL,
    expiry bigint NOT NULL,
    lock_delay bigint NOT NULL,
    since bigint NOT NULL,
    state text NOT NULL,
    owner text NOT NULL,
    label text,
    bell text NOT NULL,
    PRIMARY KEY (name, first)
);
CREATE TABLE IF NOT EXISTS fencelock_waiters (
    name text COLLATE "C" NOT NULL,
    ticket bigint NOT NULL,
    claim bytea NOT NULL,
    mode text NOT NULL,
    expiry bigint NOT NULL,
    owner text NOT NULL,
    bell text NOT NULL,
    PRIMARY KEY (name, ticket)
);

CREATE OR REPLACE FUNCTION fencelock_now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- Each statement of these functions sees what was committed before it began: also before it had to wait for the gate.
CREATE OR REPLACE FUNCTION fencelock_take(of text, gate bigint, who bytea, how text, tokens integer, lease bigint,
    delay bigint, whose text, note text, ring text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    token_ bigint;
    now_ bigint;
BEGIN
    INSERT INTO fencelock_locks (name, version) VALUES (of, gate) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    token_ := nextval('fencelock_tokens') - 15;
    now_ := fencelock_now();
    INSERT INTO fencelock_holders (name, first, count, token, claim, mode, expiry, lock_delay, since, state, owner, label, bell)
        VALUES (of, token_, tokens, token_, who, how, now_ + lease, delay, now_, 'held', whose, note, ring);
    RETURN token_;
END $$;

-- Whether it held. Those who come next hear it: the first in line, and all readers behind a reader.
CREATE OR REPLACE FUNCTION fencelock_release(of text, gate bigint, who bytea) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    held_ boolean;
    next_ record;
BEGIN
    DELETE FROM fencelock_locks WHERE name = of AND version = gate;
    IF FOUND THEN
        -- Nobody has come since.
        DELETE FROM fencelock_holders WHERE name = of AND claim = who RETURNING expiry > fencelock_now() INTO held_;
        RETURN coalesce(held_, false);
    END IF;
    UPDATE fencelock_locks SET version = version + 1 WHERE name = of;
    DELETE FROM fencelock_holders WHERE name = of AND claim = who AND state <> 'abandoned' AND expiry > fencelock_now();
    held_ := FOUND;
    IF NOT held_ THEN
        RETURN false;
    END IF;
    DELETE FROM fencelock_locks WHERE name = of
        AND NOT EXISTS (SELECT 1 FROM fencelock_holders WHERE name = of)
        AND NOT EXISTS (SELECT 1 FROM fencelock_waiters WHERE name = of);
    IF NOT FOUND THEN
        FOR next_ IN SELECT claim, mode, bell FROM fencelock_waiters WHERE name = of AND expiry > fencelock_now() ORDER BY ticket
        LOOP
            PERFORM pg_notify(next_.bell, 'turn ' || encode(next_.claim, 'hex'));
            EXIT WHEN next_.mode = 'x';
        END LOOP;
    END IF;
    RETURN true;
END $$;

-- -1 if the gate is not at this version any more, or a hold that was dead is not; else the first token of a grant, or 0.
CREATE OR REPLACE FUNCTION fencelock_write(of text, gate bigint, dead_holders bigint[], dead_waiters bigint[], what text,
    what_first bigint, what_ticket bigint, who bytea, how text, tokens integer, lease bigint, delay bigint, whose text,
    note text, ring text, last boolean, next_claims bytea[], next_bells text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    token_ bigint := 0;
    now_ bigint;
    told_ record;
BEGIN
    UPDATE fencelock_locks SET version = version + 1 WHERE name = of AND version = gate;
    IF NOT FOUND THEN
        RETURN -1;
    END IF;
    now_ := fencelock_now();
    IF cardinality(dead_waiters) > 0 THEN
        DELETE FROM fencelock_waiters WHERE name = of AND ticket = ANY (dead_waiters);
    END IF;
    IF cardinality(dead_holders) > 0 THEN
        DELETE FROM fencelock_holders WHERE name = of AND first = ANY (dead_holders) AND expiry <= now_;
        IF EXISTS (SELECT 1 FROM fencelock_holders WHERE name = of AND first = ANY (dead_holders)) THEN
            RETURN -1;
        END IF;
    END IF;
    IF what = 'grant' THEN
        IF what_ticket IS NOT NULL THEN
            DELETE FROM fencelock_waiters WHERE name = of AND ticket = what_ticket;
        END IF;
        IF what_first IS NOT NULL THEN
            DELETE FROM fencelock_holders WHERE name = of AND first = what_first;
        END IF;
        token_ := nextval('fencelock_tokens') - 15;
        INSERT INTO fencelock_holders (name, first, count, token, claim, mode, expiry, lock_delay, since, state, owner, label, bell)
            VALUES (of, token_, tokens, token_, who, how, now_ + lease, delay, now_, 'held', whose, note, ring);
    ELSIF what = 'stand' THEN
        INSERT INTO fencelock_waiters (name, ticket, claim, mode, expiry, owner, bell)
            VALUES (of, what_ticket, who, how, now_ + lease, whose, ring)
            ON CONFLICT (name, ticket) DO UPDATE SET mode = how, expiry = now_ + lease, owner = whose, bell = ring;
    ELSIF what = 'leave' THEN
        DELETE FROM fencelock_waiters WHERE name = of AND ticket = what_ticket;
    ELSIF what = 'release' THEN
        DELETE FROM fencelock_holders WHERE name = of AND first = what_first RETURNING bell, claim INTO told_;
        IF FOUND THEN
            PERFORM pg_notify(told_.bell, 'lost ' || encode(told_.claim, 'hex'));
        END IF;
    ELSIF what = 'abandon' THEN
        UPDATE fencelock_holders SET state = 'abandoned', expiry = least(expiry, now_ + delay), lock_delay = delay
            WHERE name = of AND first = what_first;
    ELSIF what = 'ask' THEN
        UPDATE fencelock_holders SET state = 'asked' WHERE name = of AND first = what_first RETURNING bell, claim INTO told_;
        IF FOUND THEN
            PERFORM pg_notify(told_.bell, 'asked ' || encode(told_.claim, 'hex'));
        END IF;
    END IF;
    IF last THEN
        DELETE FROM fencelock_locks WHERE name = of;
    END IF;
    FOR told_ IN SELECT bell, claim FROM unnest(next_bells, next_claims) AS next (bell, claim) LOOP
        PERFORM pg_notify(told_.bell, 'turn ' || encode(told_.claim, 'hex'));
    END LOOP;
    RETURN token_;
END $$;
