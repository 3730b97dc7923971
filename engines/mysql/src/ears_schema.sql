-- How the client of a waiter is woken: it keeps a connection that holds the server's lock 'fencelock-ear-...', with `ear` for the
-- dots, and waits there. With the other columns a releaser grants the lock to the waiter. A row whose waiter (of the same name,
-- ticket and claim) is gone means nothing.
CREATE TABLE IF NOT EXISTS {ears} (
    name VARBINARY(512) NOT NULL,
    ticket BIGINT NOT NULL,
    claim BINARY(16) NOT NULL,
    ear VARBINARY(32) NOT NULL,
    tokens TINYINT UNSIGNED NOT NULL,     -- how many a grant has
    label VARBINARY(255),
    since BIGINT UNSIGNED NOT NULL,
    PRIMARY KEY (name, ticket)
) ENGINE = InnoDB;
