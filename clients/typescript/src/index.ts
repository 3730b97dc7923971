export { Client, connect, type ClientOptions, type LockOptions } from "./client";
export { ConfigError, FencelockError, LockHeld, LockLost, LockTimeout, Refused, Unavailable } from "./errors";
export type { TransportOptions } from "./http";
export { Lock, type Detached } from "./lock";
export type { Mode, Outcome, ServiceOptions } from "./service";
