//! Sort lock names into classes, for metrics and spans. With the feature `metrics`, install a recorder first, such as
//! that of `metrics-exporter-prometheus`.

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let client = fencelock::connect("memory:")
        .name_class(|name| match name.as_str().split_once(':') {
            Some(("order", _)) => "order", // "order:4711"
            Some(("stock", _)) => "stock",
            _ => "other",
        })
        .await?;
    // Counted and traced as an "order".
    client.lock("order:4711").await?.release().await?;
    client.close().await
}
