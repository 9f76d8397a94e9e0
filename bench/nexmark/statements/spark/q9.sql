-- auctions have their watermark by `expires`: an auction is final when no bid for it can come
SELECT best.A.*, best.B.*
FROM (
  SELECT max_by(struct(A, B), struct(B.price, -unix_micros(B.bid_dateTime))) AS best
  FROM (
    SELECT
      A.id, A.expires,
      struct(A.*) AS A,
      struct(B.auction, B.bidder, B.price, B.`dateTime` AS bid_dateTime, B.extra AS bid_extra) AS B
    FROM auction A
    JOIN bid B
    ON A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
  )
  GROUP BY id, expires
)
