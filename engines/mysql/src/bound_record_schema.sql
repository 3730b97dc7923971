-- strategy=for-update and strategy=get-lock: what a set of stores says of this one, for each prefix of names.
CREATE TABLE IF NOT EXISTS {bound_record} (
    strategy VARBINARY(16) NOT NULL,
    scope VARBINARY(512) NOT NULL,
    version BIGINT UNSIGNED NOT NULL,
    text VARBINARY(4096) NOT NULL,
    PRIMARY KEY (strategy, scope)
) ENGINE = InnoDB;
