// For `import`. The program is loaded once, whether it is imported or required, so `instanceof` holds for both.
export {
  connect,
  Client,
  Lock,
  ConfigError,
  FencelockError,
  LockHeld,
  LockLost,
  LockTimeout,
  Refused,
  Unavailable,
} from "./dist/index.js";
