// The errors, by what a program does about them.

/** All errors of this client. */
export class FencelockError extends Error {
  override name = "FencelockError";
}

/** Others hold the lock, and the request did not want to wait. */
export class LockHeld extends FencelockError {
  override name = "LockHeld";
}

/** The lock was not granted within the caller's timeout. */
export class LockTimeout extends FencelockError {
  override name = "LockTimeout";
}

/** No replica answered, or the store behind them did not, within the caller's timeout. */
export class Unavailable extends FencelockError {
  override name = "Unavailable";
}

/** The client's URLs or options are wrong: its replicas serve different stores, or open one with different options. */
export class ConfigError extends FencelockError {
  override name = "ConfigError";
}

/** The lock is lost. Stop: the resource refuses further work with this token. */
export class LockLost extends FencelockError {
  override name = "LockLost";
}

/** The service refuses the request: a bad name, no right, or something that the store does not support. */
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
