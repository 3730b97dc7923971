//! Macros for the typed options of the engines.

/// Makes the type `Options` of an engine, with the fields `url` and `own`, into [`StoreOptions`] that show no password. Called
/// as `store_options!(|options| Config::new(options), open(options).await)`: one expression reads the options, and one opens
/// the store.
#[doc(hidden)]
#[macro_export]
macro_rules! store_options {
    (|$options:ident| $check:expr, $open:expr) => {
        impl From<$crate::StoreUrl> for Options {
            fn from(url: $crate::StoreUrl) -> Self {
                let own = Default::default();
                Self { url, own }
            }
        }

        impl ::std::fmt::Debug for Options {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, "Options({})", self.url)
            }
        }

        #[::async_trait::async_trait]
        impl $crate::engine::StoreOptions for Options {
            fn url(&mut self) -> &mut $crate::StoreUrl {
                &mut self.url
            }

            fn check(&self) -> $crate::Result<()> {
                let $options = self.clone();
                $check.map(|_| ())
            }

            async fn open(&self) -> $crate::Result<::std::sync::Arc<dyn $crate::Engine>> {
                let $options = self.clone();
                $open
            }
        }
    };
}

/// Setters of a type with the field `url`, one for each option of a URL.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($kind:ident $($choice:ident in $words:ident)?) $option:literal;)*) => {
        $($crate::setters!(@ $kind $($choice $words)? $(#[$doc])* $name $option);)*
    };
    (@ choice $choice:ident $words:ident $(#[$doc:meta])* $name:ident $option:literal) => {
        $crate::setters!(@@ $(#[$doc])* $name $option value (value: $choice)
            $words.iter().find(|(_, meant)| *meant == value).map_or("", |(word, _)| word));
    };
    (@ duration $(#[$doc:meta])* $name:ident $option:literal) => {
        $crate::setters!(@@ $(#[$doc])* $name $option value (value: ::std::time::Duration)
            value.as_secs_f64().to_string());
    };
    (@ number $(#[$doc:meta])* $name:ident $option:literal) => {
        $crate::setters!(@@ $(#[$doc])* $name $option value (value: u32) value.to_string());
    };
    (@ flag $(#[$doc:meta])* $name:ident $option:literal) => {
        $crate::setters!(@@ $(#[$doc])* $name $option value (value: bool)
            if value { "yes" } else { "no" });
    };
    (@ text $(#[$doc:meta])* $name:ident $option:literal) => {
        $crate::setters!(@@ $(#[$doc])* $name $option value (value: impl Into<String>) value);
    };
    (@ path $(#[$doc:meta])* $name:ident $option:literal) => {
        $crate::setters!(@@ $(#[$doc])* $name $option value (value: impl AsRef<::std::path::Path>)
            value.as_ref().to_string_lossy());
    };
    (@@ $(#[$doc:meta])* $name:ident $option:literal $value:ident ($($argument:tt)*) $text:expr) => {
        $(#[$doc])*
        #[doc = concat!("In a URL: `", $option, "`.")]
        #[must_use]
        pub fn $name(mut self, $($argument)*) -> Self {
            self.url.set($option, $text);
            self
        }
    };
}

/// The setters that all stores on servers have.
#[doc(hidden)]
#[macro_export]
macro_rules! server_setters {
    () => {
        /// The user. By default none. In a URL: before the hosts.
        #[must_use]
        pub fn user(mut self, user: impl Into<String>) -> Self {
            self.url.user = Some(user.into());
            self
        }

        /// The password. By default none. In a URL: after the user.
        #[must_use]
        pub fn password(mut self, password: impl Into<String>) -> Self {
            self.url.set_secret("password", password);
            self
        }

        $crate::setters! {
            /// The environment variable that has the password, instead of [`password`](Self::password).
            password_env(text) "password-env";
            /// The file that has the password; one newline at its end is ignored.
            password_file(path) "password-file";
            /// A file in PEM format with the authority to trust; by default those that this machine trusts.
            tls_ca(path) "tls-ca";
            /// A file in PEM format with this client's certificate; goes with [`tls_key`](Self::tls_key). By default none.
            tls_cert(path) "tls-cert";
            /// A file in PEM format with the key of this client's certificate. By default none.
            tls_key(path) "tls-key";
            /// How long opening the store may take; 5 s by default.
            connect_timeout(duration) "connect-timeout";
        }
        $crate::common_setters!();
    };
}

/// The setters that all stores have.
#[doc(hidden)]
#[macro_export]
macro_rules! common_setters {
    () => {
        $crate::setters! {
            /// Text that is put before every name in the store, and is not shown. By default none.
            prefix(text) "prefix";
            /// Whether requests for locks fail at once while the store is away. By default they do not.
            breaker(flag) "breaker";
            /// Whether this store may be used by itself even if it belongs to a set. By default it may not.
            outside_set(flag) "outside-set";
        }
    };
}
