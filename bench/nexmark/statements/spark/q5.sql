-- a third stateful operator, the join of the published statement, is not needed for the ties
SELECT best.auction, best.num
FROM (
  SELECT explode(filter(auctions, each -> each.num = maxn)) AS best
  FROM (
    SELECT window, max(num) AS maxn, collect_list(struct(auction, num)) AS auctions
    FROM (
      SELECT auction, window, count(*) AS num
      FROM bid
      GROUP BY auction, window(`dateTime`, '10 seconds', '2 seconds')
    )
    GROUP BY window
  )
)
