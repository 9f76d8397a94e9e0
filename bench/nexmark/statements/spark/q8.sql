SELECT P.id, P.name, P.window.start AS starttime
FROM (
  SELECT id, name, window FROM person GROUP BY id, name, window(`dateTime`, '10 seconds')
) P
JOIN (
  SELECT seller, window FROM auction GROUP BY seller, window(`dateTime`, '10 seconds')
) A
ON P.id = A.seller AND P.window = A.window
