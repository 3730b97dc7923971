//! Puts a store under faults, records what its clients believed, and checks it.
