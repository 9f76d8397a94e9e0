SELECT B.auction, B.price, B.bidder, B.`dateTime`, B.extra
FROM bid B
JOIN (
  -- the last microsecond of the window is the time of its row
  SELECT maxprice, window_time(window) AS last
  FROM (
    SELECT window, max(price) AS maxprice FROM bid GROUP BY window(`dateTime`, '10 seconds')
  )
) B1
ON B.price = B1.maxprice
AND B.`dateTime` > B1.last - INTERVAL '10' SECOND
AND B.`dateTime` <= B1.last + INTERVAL '0.000001' SECOND
