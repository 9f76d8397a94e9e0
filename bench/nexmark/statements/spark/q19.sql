SELECT auction, bid.*, place + 1 AS rank_number
FROM (
  SELECT auction, posexplode(best) AS (place, bid)
  FROM (
    SELECT auction,
        max_by(struct(bidder, price, channel, url, `dateTime`, extra), price, 10) AS best
    FROM bid
    GROUP BY auction
  )
)
