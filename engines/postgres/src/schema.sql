-- Format 1. What fencelock keeps in PostgreSQL. It creates this by itself where it may; else an administrator runs this script.

-- One row: the format, and the run of the server (its timeline, its start, and its last recovery from a crash) for which
-- tokens were last lifted to the time.
CREATE TABLE IF NOT EXISTS fencelock_store (
    id integer PRIMARY KEY CHECK (id = 1),
    format integer NOT NULL,
    run text NOT NULL
);
INSERT INTO fencelock_store (id, format, run) VALUES (1, 1, '') ON CONFLICT DO NOTHING;

-- Fencing tokens, sixteen at a time.
CREATE SEQUENCE IF NOT EXISTS fencelock_tokens INCREMENT BY 16 MINVALUE 16;

-- strategy=advisory: who holds, and (with a count of 0) who waits, by which connection. A row whose connection has ended
-- means nothing.
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
    -- The mark of the connection: the end of its application name, after `fencelock-`, as a number.
    started bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS fencelock_bound_name ON fencelock_bound (name);

-- strategy=lease: a gate per name that is in use, its holders and its queue. Times are microseconds since 1970, UTC. The
-- column `bell` is the channel on which the claim's process is notified: 'fencelock_ear_PID_KEY', with the connection that listens
-- and the number of a lock (16 hex digits) that it holds while it is an ear.
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
-- With this a releaser grants the lock to the next waiter: how many tokens, and for how long without a sign of life. A waiter
-- without tokens (stored by an older version) is notified that it is its turn.
ALTER TABLE fencelock_waiters
    ADD COLUMN IF NOT EXISTS tokens integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS reach bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS label text;

-- A hold that a releaser gave to an ear, until its client gives a sign of life.
CREATE INDEX IF NOT EXISTS fencelock_holders_given ON fencelock_holders (bell) WHERE state = 'given';

-- What a set of stores says of this one, for each prefix of names.
CREATE TABLE IF NOT EXISTS fencelock_record (
    scope text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    text text NOT NULL
);

-- The same of the database as a store with strategy=advisory.
CREATE TABLE IF NOT EXISTS fencelock_bound_record (
    strategy text NOT NULL,
    scope text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (strategy, scope)
);

-- A function that changes its meaning gets a new name: clients of several versions may use one database.
CREATE OR REPLACE FUNCTION fencelock_now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- The revision of these functions. A client that finds none, or a lower one, runs this script again.
CREATE OR REPLACE FUNCTION fencelock_revision() RETURNS integer LANGUAGE sql IMMUTABLE AS $$ SELECT 5 $$;

-- Lifts tokens above the time and above `least_`, if they are below. Returns the last one by then. Tokens grow more slowly
-- than the time does, so a token above the time is above all earlier ones, also after an old dump was restored. It lifts a
-- hundredth of a second ahead, so that few draws have to lift. The counter is never lowered: one client lifts at a time, and
-- the draws of others meanwhile come nowhere near the goal. The rollback of the block unlocks the row at once, but keeps the
-- counter.
CREATE OR REPLACE FUNCTION fencelock_lift(least_ bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    goal_ bigint;
    last_ bigint;
BEGIN
    BEGIN
        PERFORM 1 FROM fencelock_store WHERE id = 1 FOR UPDATE;
        goal_ := greatest(fencelock_now(), least_);
        PERFORM setval('fencelock_tokens', goal_ + 10000) FROM fencelock_tokens WHERE last_value < goal_;
        RAISE EXCEPTION 'lifted' USING ERRCODE = 'FL001';
    EXCEPTION WHEN SQLSTATE 'FL001' THEN
        NULL;
    END;
    SELECT last_value INTO last_ FROM fencelock_tokens;
    RETURN last_;
END $$;

-- Returns the first of sixteen tokens, all of them above the time.
CREATE OR REPLACE FUNCTION fencelock_draw() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    token_ bigint;
BEGIN
    token_ := nextval('fencelock_tokens') - 15;
    IF token_ < fencelock_now() THEN
        PERFORM fencelock_lift(0);
        token_ := nextval('fencelock_tokens') - 15;
    END IF;
    RETURN token_;
END $$;

-- Whether the queue of notifications is nearly full. When it is full, a transaction that adds one fails, and a release with it.
-- So nobody is notified then, and waiters find out when they poll.
CREATE OR REPLACE FUNCTION fencelock_quiet() RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN RETURN pg_notification_queue_usage() > 0.9; END $$;

CREATE OR REPLACE FUNCTION fencelock_tell(bell text, news text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT fencelock_quiet() THEN
        PERFORM pg_notify(bell, news);
    END IF;
END $$;

-- Each statement of these functions sees what was committed before it began, also while the function waited for the gate.
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
    token_ := fencelock_draw();
    now_ := fencelock_now();
    INSERT INTO fencelock_holders (name, first, count, token, claim, mode, expiry, lock_delay, since, state, owner, label, bell)
        VALUES (of, token_, tokens, token_, who, how, now_ + lease, delay, now_, 'held', whose, note, ring);
    RETURN token_;
END $$;

-- Puts a new claim in the queue if it certainly has to wait. Returns the gate's new version, how many waiters are ahead, how long
-- the first holder to expire has left, and the last token drawn. This decides only between an exclusive claim and others; the
-- full rule of admission decides about the rest.
CREATE OR REPLACE FUNCTION fencelock_queue(of text, who bytea, how text, count integer, reach_ bigint, place bigint, whose text,
    note text, ring text, OUT version_ bigint, OUT ahead_ bigint, OUT left_ bigint, OUT drawn_ bigint) LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    last_ bigint;
    queue_ record;
    hold_ record;
BEGIN
    UPDATE fencelock_locks SET version = version + 1 WHERE name = of RETURNING version INTO version_;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    now_ := fencelock_now();
    SELECT count(*) FILTER (WHERE expiry > now_) AS ahead, max(ticket) AS last, bool_or(claim = who) AS mine,
        bool_or(expiry > now_ AND (mode = 'x' OR how = 'x')) AS bars INTO queue_ FROM fencelock_waiters WHERE name = of;
    SELECT min(expiry) AS expiry, bool_or(claim = who) AS mine, bool_or(mode = 'x' OR how = 'x') AS bars
        INTO hold_ FROM fencelock_holders WHERE name = of AND expiry > now_;
    IF queue_.mine OR hold_.mine OR NOT coalesce(queue_.bars OR hold_.bars, false) THEN
        version_ := NULL;
        RETURN;
    END IF;
    ahead_ := queue_.ahead;
    left_ := hold_.expiry - now_;
    SELECT last_value INTO drawn_ FROM fencelock_tokens;
    INSERT INTO fencelock_waiters (name, ticket, claim, mode, expiry, owner, bell, tokens, reach, label)
        VALUES (of, coalesce(queue_.last, 0) + 1, who, how, now_ + place, whose, ring, count, reach_, note);
END $$;

-- Whether this bell is that of an ear: of a connection that wants to be cancelled, and not notified. If not, it becomes none before
-- the transaction ends. A number of a process that is used again for another one is not taken for it.
CREATE OR REPLACE FUNCTION fencelock_hears(bell text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN bell ~ '^fencelock_ear_[1-9][0-9]{0,8}_[0-9a-f]{16}$'
        AND NOT pg_try_advisory_xact_lock_shared(('x' || split_part(bell, '_', 4))::bit(64)::bigint);
END $$;

-- Wakes ears. It comes after the commit of what they shall see: an ear looks as soon as it is cancelled, and then sleeps on.
-- An ear that is none any more is notified, and so is one that this user may not cancel.
CREATE OR REPLACE FUNCTION fencelock_ring(bells text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bell_ text;
BEGIN
    FOREACH bell_ IN ARRAY bells LOOP
        IF fencelock_hears(bell_) THEN
            BEGIN
                PERFORM pg_cancel_backend(split_part(bell_, '_', 3)::integer);
                CONTINUE;
            EXCEPTION WHEN insufficient_privilege THEN
                NULL;
            END;
        END IF;
        PERFORM fencelock_tell(bell_, 'missed');
    END LOOP;
END $$;

-- Makes this connection an ear. Returns false, and changes nothing, if it cannot be cancelled.
CREATE OR REPLACE FUNCTION fencelock_become_ear(key bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        PERFORM pg_cancel_backend(pg_backend_pid());
        PERFORM pg_sleep(1);
    EXCEPTION
        WHEN query_canceled THEN
            -- It waits for those who have just seen no ear, and notify this connection.
            PERFORM pg_advisory_lock(key);
            RETURN true;
        WHEN insufficient_privilege THEN
            NULL;
    END;
    RETURN false;
END $$;

-- What an ear does: looks whether a releaser granted something to it, and sleeps until it is cancelled. It looks first, and again
-- after each sleep and each cancellation, also one that comes before the sleep begins; each look sees all that was committed by then.
-- One that comes before the procedure begins or after it ends is lost, but then the next call looks. Each sleep is a transaction of
-- its own: what is deleted meanwhile has to stay for as long as one lasts. Returns rows of claim, first token, count of tokens,
-- and microseconds until it expires; NULL if it was cancelled for something else, or all its sleeps are over.
CREATE OR REPLACE PROCEDURE fencelock_hear(bells text[], known bigint[], nap double precision, naps integer, INOUT news text)
    LANGUAGE plpgsql AS $$
DECLARE
    woken_ boolean := false;
BEGIN
    FOR nap_ IN 0..naps LOOP
        BEGIN
            SELECT string_agg(concat_ws(' ', encode(claim, 'hex'), first, count, expiry - fencelock_now()), E'\n') INTO news
                FROM fencelock_holders WHERE bell = ANY (bells) AND state = 'given' AND expiry > fencelock_now()
                AND first <> ALL (known);
            EXIT WHEN woken_ OR news IS NOT NULL;
            IF nap_ < naps THEN
                PERFORM pg_sleep(nap);
            END IF;
        EXCEPTION WHEN query_canceled THEN
            woken_ := true;
        END;
        IF NOT woken_ THEN
            COMMIT;
        END IF;
    END LOOP;
END $$;

-- Releases a hold, and returns whether the claim held. The next waiters that may hold are granted the lock: for a moment, until
-- their processes give a sign of life. Those whose bells are returned are rung after the commit. The others are notified by it.
CREATE OR REPLACE FUNCTION fencelock_give(of text, gate bigint, who bytea, OUT held_ boolean, OUT bells_ text[])
    LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    holders_ integer;
    mode_ text;
    expired_ boolean;
    token_ bigint;
    next_ record;
    hears_ boolean;
BEGIN
    DELETE FROM fencelock_locks WHERE name = of AND version = gate;
    IF FOUND THEN
        -- Nobody has come since.
        DELETE FROM fencelock_holders WHERE name = of AND claim = who RETURNING expiry > fencelock_now() INTO held_;
        held_ := coalesce(held_, false);
        RETURN;
    END IF;
    UPDATE fencelock_locks SET version = version + 1 WHERE name = of;
    now_ := fencelock_now();
    DELETE FROM fencelock_holders WHERE name = of AND claim = who AND state <> 'abandoned' AND expiry > now_;
    held_ := FOUND;
    IF NOT held_ THEN
        RETURN;
    END IF;
    LOOP
        -- The mode of all holders; NULL if they differ, which nothing may join.
        SELECT count(*), CASE WHEN min(mode) = max(mode) THEN min(mode) END, bool_or(expiry <= now_)
            INTO holders_, mode_, expired_ FROM fencelock_holders WHERE name = of;
        EXIT WHEN expired_ IS NOT TRUE;
        -- A holder that is renewed at this moment stays.
        DELETE FROM fencelock_holders WHERE name = of AND expiry <= now_;
    END LOOP;
    FOR next_ IN SELECT * FROM fencelock_waiters WHERE name = of AND expiry > now_ ORDER BY ticket LOOP
        -- The rule of admission. A permit has its number in the mode, as in p:5.
        EXIT WHEN holders_ > 0 AND (mode_ IS DISTINCT FROM next_.mode OR CASE
            WHEN next_.mode LIKE 'p:%' THEN holders_ >= substr(next_.mode, 3)::integer ELSE next_.mode <> 's' END);
        holders_ := holders_ + 1;
        mode_ := next_.mode;
        IF next_.tokens = 0 OR fencelock_quiet() THEN
            PERFORM fencelock_tell(next_.bell, 'turn ' || encode(next_.claim, 'hex'));
        ELSE
            DELETE FROM fencelock_waiters WHERE name = of AND ticket = next_.ticket;
            -- The time is taken after the draw: a client that saw an older token asked before this lease begins.
            hears_ := fencelock_hears(next_.bell);
            token_ := fencelock_draw();
            now_ := fencelock_now();
            INSERT INTO fencelock_holders (name, first, count, token, claim, mode, expiry, lock_delay, since, state, owner, label, bell)
                VALUES (of, token_, next_.tokens, token_, next_.claim, next_.mode, now_ + next_.reach, 0, now_,
                    CASE WHEN hears_ THEN 'given' ELSE 'held' END, next_.owner, next_.label, next_.bell);
            IF hears_ THEN
                bells_ := array_append(bells_, next_.bell);
            ELSE
                PERFORM fencelock_tell(next_.bell, 'held ' || encode(next_.claim, 'hex') || ' ' || token_ || ' ' || next_.tokens
                    || ' ' || next_.reach);
            END IF;
        END IF;
        EXIT WHEN next_.mode = 'x';
    END LOOP;
    IF holders_ = 0 THEN
        DELETE FROM fencelock_locks WHERE name = of AND NOT EXISTS (SELECT 1 FROM fencelock_waiters WHERE name = of);
    END IF;
END $$;

CREATE OR REPLACE PROCEDURE fencelock_hand_off(of text, gate bigint, who bytea, INOUT held boolean) LANGUAGE plpgsql AS $$
DECLARE
    bells_ text[];
BEGIN
    SELECT g.held_, g.bells_ INTO held, bells_ FROM fencelock_give(of, gate, who) AS g;
    IF bells_ IS NOT NULL THEN
        COMMIT;
        PERFORM fencelock_ring(bells_);
    END IF;
END $$;

-- For clients of revision 3, which ring nobody: an ear is notified, too, and looks after its sleep at the latest.
CREATE OR REPLACE FUNCTION fencelock_let_go(of text, gate bigint, who bytea) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    held_ boolean;
    bells_ text[];
BEGIN
    SELECT g.held_, g.bells_ INTO held_, bells_ FROM fencelock_give(of, gate, who) AS g;
    PERFORM fencelock_tell(bell, 'missed') FROM unnest(bells_) AS told (bell);
    RETURN held_;
END $$;

-- Makes a change. Returns -1 if the lock is not as it was read: the gate is not at this version any more, a holder that the change
-- is about is gone, or a hold that had expired was renewed. Else returns the first token of a grant, or 0. The version alone does
-- not tell: it begins with one that follows from the claim, and a claim may be placed again after its gate was deleted.
CREATE OR REPLACE FUNCTION fencelock_change(of text, gate bigint, dead_holders bigint[], dead_waiters bigint[], what text,
    what_first bigint, what_ticket bigint, who bytea, how text, count_ integer, lease bigint, delay bigint, whose text,
    note text, ring text, last boolean, next_claims bytea[], next_bells text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    token_ bigint := 0;
    now_ bigint;
    told_ record;
    deleted_ bigint;
BEGIN
    UPDATE fencelock_locks SET version = version + 1 WHERE name = of AND version = gate;
    IF NOT FOUND THEN
        RETURN -1;
    END IF;
    IF what_first IS NOT NULL AND NOT EXISTS (SELECT 1 FROM fencelock_holders WHERE name = of AND first = what_first) THEN
        RETURN -1;
    END IF;
    now_ := fencelock_now();
    IF cardinality(dead_waiters) > 0 THEN
        DELETE FROM fencelock_waiters WHERE name = of AND ticket = ANY (dead_waiters);
    END IF;
    IF cardinality(dead_holders) > 0 THEN
        DELETE FROM fencelock_holders WHERE name = of AND first = ANY (dead_holders) AND expiry <= now_;
        GET DIAGNOSTICS deleted_ = ROW_COUNT;
        IF deleted_ <> cardinality(dead_holders) THEN
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
        token_ := fencelock_draw();
        now_ := fencelock_now();
        INSERT INTO fencelock_holders (name, first, count, token, claim, mode, expiry, lock_delay, since, state, owner, label, bell)
            VALUES (of, token_, count_, token_, who, how, now_ + lease, delay, now_, 'held', whose, note, ring);
    ELSIF what = 'stand' THEN
        INSERT INTO fencelock_waiters (name, ticket, claim, mode, expiry, owner, bell, tokens, reach, label)
            VALUES (of, what_ticket, who, how, now_ + lease, whose, ring, count_, delay, note)
            ON CONFLICT (name, ticket) DO UPDATE SET mode = how, expiry = now_ + lease, owner = whose, bell = ring,
                tokens = count_, reach = delay, label = note;
    ELSIF what = 'leave' THEN
        DELETE FROM fencelock_waiters WHERE name = of AND ticket = what_ticket;
    ELSIF what = 'release' THEN
        DELETE FROM fencelock_holders WHERE name = of AND first = what_first RETURNING bell, claim INTO told_;
        IF FOUND THEN
            PERFORM fencelock_tell(told_.bell, 'lost ' || encode(told_.claim, 'hex'));
        END IF;
    ELSIF what = 'abandon' THEN
        UPDATE fencelock_holders SET state = 'abandoned', expiry = least(expiry, now_ + delay), lock_delay = delay
            WHERE name = of AND first = what_first;
    ELSIF what = 'ask' THEN
        UPDATE fencelock_holders SET state = 'asked' WHERE name = of AND first = what_first RETURNING bell, claim INTO told_;
        IF FOUND THEN
            PERFORM fencelock_tell(told_.bell, 'asked ' || encode(told_.claim, 'hex'));
        END IF;
    END IF;
    IF last THEN
        DELETE FROM fencelock_locks WHERE name = of;
    END IF;
    FOR told_ IN SELECT bell, claim FROM unnest(next_bells, next_claims) AS next (bell, claim) LOOP
        PERFORM fencelock_tell(told_.bell, 'turn ' || encode(told_.claim, 'hex'));
    END LOOP;
    RETURN token_;
END $$;
