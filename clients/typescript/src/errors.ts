// What can go wrong, by what a program does about it.

/** All errors of this client. */
export class FencelockError extends Error {
  override name = "FencelockError";
}

/** Others hold the lock, and the request was not to wait. */
export class LockHeld extends FencelockError {
  override name = "LockHeld";
}

/** The lock did not come in the time that the caller had. */
export class LockTimeout extends FencelockError {
  override name = "LockTimeout";
}

/** No replica answered, or the store behind them did not, in the time that the caller had. */
export class Unavailable extends FencelockError {
  override name = "Unavailable";
}

/** The client's URLs or options are wrong: its replicas serve different stores, or open one with different options. */
export class ConfigError extends FencelockError {
  override name = "ConfigError";
}

/** The hold may no longer be trusted. Stop; what was not finished under this token is refused by the resource. */
export class LockLost extends FencelockError {
  override name = "LockLost";
}

/** The service refuses the request: a bad name, no right, something that the store does not offer. */
export class Refused extends FencelockError {
  override name = "Refused";
  constructor(
    message: string,
    /** The HTTP status. */
    readonly status: number,
    /** The last word of the problem's type: "forbidden", "unsupported". */
    readonly problem: string,
  ) {
    super(message);
  }
}
