-- Format 1. Times are microseconds of UTC since 1970, on the database's clock. Text is kept as bytes: no collation folds
-- or pads it.

-- One row: which format the tables have.
CREATE TABLE IF NOT EXISTS {store} (
    id TINYINT UNSIGNED NOT NULL PRIMARY KEY,
    format INT UNSIGNED NOT NULL
) ENGINE = InnoDB;

-- The gate of each lock that is held or waited for. Every change of its holders and its line counts the version up.
CREATE TABLE IF NOT EXISTS {locks} (
    name VARBINARY(512) NOT NULL PRIMARY KEY,
    version BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB;

-- A grant's tokens are 16 * id + 0, 1, ... up to how many it has. The id is drawn after the gate is won.
CREATE TABLE IF NOT EXISTS {holders} (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    name VARBINARY(512) NOT NULL,
    claim BINARY(16) NOT NULL,
    mode VARBINARY(16) NOT NULL,          -- x, s, or p:N
    tokens TINYINT UNSIGNED NOT NULL,     -- how many
    current TINYINT UNSIGNED NOT NULL,    -- which of them is in use
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

INSERT IGNORE INTO {store} (id, format) VALUES (1, 1);
