-- Format 2. Times are microseconds of UTC since 1970, on the database's clock. Text is kept as bytes: no collation folds
-- or pads it.

-- One row: which format the tables have.
CREATE TABLE IF NOT EXISTS {store} (
    id TINYINT UNSIGNED NOT NULL PRIMARY KEY,
    format INT UNSIGNED NOT NULL
) ENGINE = InnoDB;

-- The gate of each lock that is held or waited for, and whoever holds it alone. Every change of its holders and its line
-- counts the version up. A grant's tokens are 16 * id + 0, 1, ... up to how many it has; each grant makes the gate anew, and
-- so draws an id.
CREATE TABLE IF NOT EXISTS {locks} (
    name VARBINARY(512) NOT NULL PRIMARY KEY,
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    version BIGINT UNSIGNED NOT NULL,
    state VARBINARY(16) NOT NULL,         -- held, asked, or abandoned; none: nobody holds alone, and the rest says nothing
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

-- Those who hold a lock beside others, each with the id that its grant drew.
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
    ticket BIGINT NOT NULL,               -- the order of the line
    claim BINARY(16) NOT NULL,
    mode VARBINARY(16) NOT NULL,
    expiry BIGINT UNSIGNED NOT NULL,
    owner VARBINARY(255) NOT NULL,
    PRIMARY KEY (name, ticket)
) ENGINE = InnoDB;

-- Whoever is to be granted a lock keeps one of these rows locked, by a hash of the lock's name, from before it draws its id
-- to the end of its transaction. So of two who want the same lock, the one that draws later is granted it later.
CREATE TABLE IF NOT EXISTS {draws} (
    id SMALLINT UNSIGNED NOT NULL PRIMARY KEY,
    zero TINYINT UNSIGNED NOT NULL
) ENGINE = InnoDB;

INSERT IGNORE INTO {draws} (id, zero)
    WITH RECURSIVE ids (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM ids WHERE id < 999) SELECT id, 0 FROM ids;

INSERT IGNORE INTO {store} (id, format) VALUES (1, 2);
