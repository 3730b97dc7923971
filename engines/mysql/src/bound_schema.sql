-- strategy=for-update: the rows to lock, while they are used.
CREATE TABLE IF NOT EXISTS {names} (
    name VARBINARY(512) NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- strategy=for-update and strategy=get-lock: who holds, and (with a count of 0) who waits, by which connection. A row whose
-- connection has ended means nothing.
CREATE TABLE IF NOT EXISTS {bound} (
    claim BINARY(16) NOT NULL PRIMARY KEY,
    strategy VARBINARY(16) NOT NULL,
    name VARBINARY(512) NOT NULL,
    first BIGINT UNSIGNED NOT NULL,
    count TINYINT UNSIGNED NOT NULL,
    token BIGINT UNSIGNED NOT NULL,
    owner VARBINARY(255) NOT NULL,
    label VARBINARY(255),
    ttl BIGINT UNSIGNED NOT NULL,
    since BIGINT UNSIGNED NOT NULL,
    asked TINYINT UNSIGNED NOT NULL DEFAULT 0,
    conn BIGINT UNSIGNED NOT NULL,
    host VARBINARY(255) NOT NULL,         -- from where, with the port
    login VARBINARY(255) NOT NULL,        -- the connection's user
    KEY name (name)
) ENGINE = InnoDB;

-- strategy=for-update: fencing tokens, sixteen for each id. The rows are rolled back; the counter is not.
CREATE TABLE IF NOT EXISTS {tokens} (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY
) ENGINE = InnoDB;

-- strategy=get-lock: one row, which maps numbers of UUID_SHORT() to ids in this run of the server. Number `origin` is id
-- `base`, the next number the next id, and so on; numbers below `upto` are reserved.
CREATE TABLE IF NOT EXISTS {counter} (
    id TINYINT UNSIGNED NOT NULL PRIMARY KEY,
    origin BIGINT UNSIGNED NOT NULL,
    base BIGINT UNSIGNED NOT NULL,
    upto BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB;
