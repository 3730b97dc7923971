-- Format 2. Times are microseconds since 1970, UTC, on the database's clock. Text is stored as bytes: no collation changes it.

-- One row: the format of the tables.
CREATE TABLE IF NOT EXISTS {store} (
    id TINYINT UNSIGNED NOT NULL PRIMARY KEY,
    format INT UNSIGNED NOT NULL
) ENGINE = InnoDB;

-- The gate of each lock that is held or waited for, and its exclusive holder. Every change of its holders and its queue counts
-- the version up. A grant's tokens are 16 * id + 0, 1, ..., as many as it has. Each grant inserts the gate anew, and so draws
-- an id.
CREATE TABLE IF NOT EXISTS {locks} (
    name VARBINARY(512) NOT NULL PRIMARY KEY,
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    version BIGINT UNSIGNED NOT NULL,
    state VARBINARY(16) NOT NULL,         -- held, asked or abandoned; none: no exclusive holder, and the columns below mean nothing
    claim BINARY(16) NOT NULL,
    tokens TINYINT UNSIGNED NOT NULL,     -- how many
    current TINYINT UNSIGNED NOT NULL,    -- which of them is in use
    expiry BIGINT UNSIGNED NOT NULL,
    lock_delay BIGINT UNSIGNED NOT NULL,
    since BIGINT UNSIGNED NOT NULL,
    owner VARBINARY(255) NOT NULL,
    label VARBINARY(255),
    UNIQUE KEY id (id)
) ENGINE = InnoDB;

-- Shared holders and permits, each with the id that its grant drew.
CREATE TABLE IF NOT EXISTS {holders} (
    id BIGINT UNSIGNED NOT NULL,
    name VARBINARY(512) NOT NULL,
    claim BINARY(16) NOT NULL,
    mode VARBINARY(16) NOT NULL,          -- s, or p:N
    current TINYINT UNSIGNED NOT NULL,
    expiry BIGINT UNSIGNED NOT NULL,
    lock_delay BIGINT UNSIGNED NOT NULL,
    since BIGINT UNSIGNED NOT NULL,
    state VARBINARY(16) NOT NULL,         -- held, asked, or abandoned
    owner VARBINARY(255) NOT NULL,
    label VARBINARY(255),
    PRIMARY KEY (name, claim),
    UNIQUE KEY id (id)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS {waiters} (
    name VARBINARY(512) NOT NULL,
    ticket BIGINT NOT NULL,               -- the order of the queue
    claim BINARY(16) NOT NULL,
    mode VARBINARY(16) NOT NULL,
    expiry BIGINT UNSIGNED NOT NULL,
    owner VARBINARY(255) NOT NULL,
    PRIMARY KEY (name, ticket)
) ENGINE = InnoDB;

-- A transaction that grants a lock keeps one of these rows locked, chosen by a hash of the lock's name, from before it draws
-- its id until it ends. So of two claims for one lock, the one that draws later is granted later.
CREATE TABLE IF NOT EXISTS {draws} (
    id SMALLINT UNSIGNED NOT NULL PRIMARY KEY,
    zero TINYINT UNSIGNED NOT NULL
) ENGINE = InnoDB;

-- What a set of stores says of this one, for each prefix of names.
CREATE TABLE IF NOT EXISTS {record} (
    scope VARBINARY(512) NOT NULL PRIMARY KEY,
    version BIGINT UNSIGNED NOT NULL,
    text VARBINARY(4096) NOT NULL
) ENGINE = InnoDB;

INSERT IGNORE INTO {draws} (id, zero)
    WITH RECURSIVE ids (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM ids WHERE id < 999) SELECT id, 0 FROM ids;

INSERT IGNORE INTO {store} (id, format) VALUES (1, 2);
