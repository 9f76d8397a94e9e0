SELECT auction, bidder, newest.*
FROM (
  SELECT auction, bidder,
      max_by(struct(price, channel, url, `dateTime`, extra), `dateTime`) AS newest
  FROM bid
  GROUP BY bidder, auction
)
